package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/cli"
	"pollux/internal/config"
	"pollux/internal/dev"
)

var update = flag.Bool("update", false, "write the files that are made of others")

// root is the folder of the repository.
const root = "../.."

// configPath is where the image looks for its configuration.
const configPath = "/etc/pollux/pollux.yaml"

// binaries are what is built from cmd, by the names that they have in the images.
var binaries = map[string]func() *cobra.Command{
	"consumer":     app.ConsumerCommand,
	"outbox-relay": app.RelayCommand,
	"webhook":      app.WebhookCommand,
	"pollux":       cli.Command,
	"dev":          dev.Command,
}

// TestMain also is the binaries, as processes that the tests start.
func TestMain(m *testing.M) {
	programs := map[string]func(){}
	for name, command := range binaries {
		programs[name] = func() { os.Exit(app.Main(command())) }
	}
	testscript.Main(m, programs)
}

// parsed is a command line that a binary has understood.
type parsed struct {
	cmd  *cobra.Command
	path string // the binary and its subcommands
}

// parse reads a command line as the binary that it begins with does.
func parse(argv []string) (parsed, error) {
	if len(argv) == 0 {
		return parsed{}, fmt.Errorf("no command")
	}
	command, ok := binaries[argv[0]]
	if !ok {
		return parsed{}, fmt.Errorf("%q is no binary of Pollux", argv[0])
	}
	cmd, rest, err := command().Find(argv[1:])
	if err != nil {
		return parsed{}, fmt.Errorf("%q: %w", argv, err)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return parsed{}, fmt.Errorf("%q: %w", argv, err)
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return parsed{}, fmt.Errorf("%q: %w", argv, err)
	}
	if !cmd.Runnable() {
		return parsed{}, fmt.Errorf("%q does nothing by itself", argv)
	}
	return parsed{cmd, cmd.CommandPath()}, nil
}

// uses are what the command lines that occur in deployments leave out of the configuration, and so which secrets they need. The test that runs the stack finds out
// whether that is so.
var uses = map[string]config.Skip{
	"outbox-relay":         config.SkipGateways | config.SkipWebhooks,
	"consumer":             config.SkipWebhooks,
	"webhook":              config.SkipBroker | config.SkipGateways,
	"pollux migrate up":    config.SkipBroker | config.SkipGateways | config.SkipWebhooks,
	"pollux streams apply": config.SkipDatabase | config.SkipGateways | config.SkipWebhooks,
	"pollux":               0, // whatever an operator may ask for
}

// mounted is a configuration as a container sees it: a file, and a folder of secrets that the file names by where they are mounted.
type mounted struct {
	text    string // of the file
	secrets string // where the file says that they are
	files   map[string]string
	environ []string
}

// load reads the configuration with the secrets in a folder of the test's.
func (m mounted) load(t *testing.T, skip config.Skip) (config.Config, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range m.files {
		write(t, filepath.Join(dir, name), content)
	}
	file := filepath.Join(dir, "pollux.yaml")
	write(t, file, strings.ReplaceAll(m.text, m.secrets, dir))
	return config.Load(config.Options{File: file, Environ: append([]string{}, m.environ...), Skip: skip})
}

// write writes a file that only its owner can read.
func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// certificate is one that signs itself, as PEM.
var certificate = sync.OnceValue(func() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
})

// mutation is a fault that somebody may put into a file, and a part of what must be said about it.
type mutation struct {
	old, new string
	says     string
}

// apply puts the fault in.
func (m mutation) apply(t *testing.T, text string) string {
	t.Helper()
	if !strings.Contains(text, m.old) {
		t.Fatalf("the file has no %q to be replaced", m.old)
	}
	return strings.Replace(text, m.old, m.new, 1)
}

// found reports whether one of the problems says it.
func (m mutation) found(problems []string) bool {
	return slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, m.says) })
}

func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}
