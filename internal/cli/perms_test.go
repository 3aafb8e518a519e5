package cli

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nkeys"

	"pollux/internal/broker"
	"pollux/internal/outbox"
	"pollux/internal/postgres"
)

var updatePermissions = flag.Bool("permissions.update", false, "write the tables of docs/permissions.md")

// TestThePageOfPermissionsIsWhatIsGranted compares the tables of docs/permissions.md with what is granted and printed. With -permissions.update it writes them.
func TestThePageOfPermissionsIsWhatIsGranted(t *testing.T) {
	const file = "../../docs/permissions.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := string(page)
	for name, table := range map[string]string{"postgres": rolesTable(), "nats": usersTable()} {
		want = regexp.MustCompile(`(?s)(<!-- table: `+name+` -->\n).*?(<!-- end -->)`).ReplaceAllString(want, "${1}"+strings.ReplaceAll(table, "$", "$$")+"${2}")
	}
	if *updatePermissions {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(page)); diff != "" {
		t.Errorf("write it with -permissions.update:\n%s", diff)
	}
}

func rolesTable() string {
	var b strings.Builder
	b.WriteString("| role | rights |\n|---|---|\n")
	for _, r := range postgres.Roles {
		rights := strings.Join(r.Rights(), "<br>")
		if rights == "" {
			rights = "owns the schema"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", r, rights)
	}
	return b.String()
}

func usersTable() string {
	var b strings.Builder
	b.WriteString("| user | account | may publish to | may read |\n|---|---|---|---|\n")
	quoted := func(subjects []string) string { return "`" + strings.Join(subjects, "`<br>`") + "`" }
	for _, u := range broker.Users(broker.Access{Queues: []outbox.Queue{{Gateway: "acme", Lane: "normal"}}, Readers: []string{"ledger"}}) {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", u.Name, u.Account, quoted(u.Publish), quoted(u.Subscribe))
	}
	return b.String()
}

func TestAKeyThatIsNotAUsersIsRefused(t *testing.T) {
	pair, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "relay.nk"), seed, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keyOf(dir, "relay"); err == nil || !strings.Contains(err.Error(), "not the seed of a user") || strings.Contains(err.Error(), string(seed)) {
		t.Errorf("%v", err)
	}
}
