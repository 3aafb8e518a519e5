package secret

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A ConfigMap is a folder of mode 0777 on a mount that is read-only.
func TestAFolderThatIsMountedReadOnlyTakesNothingFromAnybody(t *testing.T) {
	base := t.TempDir()
	open := filepath.Join(base, "open")
	file := filepath.Join(open, "key")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.WriteFile(file, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, mounted := range []bool{false, true} {
		want := open
		if mounted {
			want = ""
		}
		folder, err := swappable(file, func(dir string) bool { return mounted && dir == open })
		if err != nil || folder != want {
			t.Errorf("read-only %t: %q, %v; want %q", mounted, folder, err, want)
		}
	}
	if sealed(open) || sealed(filepath.Join(base, "absent")) {
		t.Error("a folder that takes files, or is not there, is no mount that is read-only")
	}
}
