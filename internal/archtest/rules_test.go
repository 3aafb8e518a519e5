package archtest

// rule is a wall. Folders and packages of this module are written as "./internal/outbox", packages of others by their import
// path. A pattern that ends in "/..." means a folder and all below it; one that ends in "/*" means only what is below.
// A folder that does not exist yet is bound from the day it does.
type rule struct {
	name   string
	in     []string // the folders that are bound
	except []string // those of them that are not
	files  kind     // which of their files

	imports []string // what must not be imported; outside means every package of another module
	but     []string // what of it may be
	calls   []string // functions that must not be named, such as "os.Getenv"
	unless  string   // a package whose import lifts the rule for a file

	reason string
}

// kind tells production code from tests.
type kind int

const (
	code kind = iota
	tests
)

// outside matches the packages of all other modules, the standard library excepted.
const outside = "(another module)"

var (
	everything = []string{"./..."}

	// pure decides and formats, and touches nothing.
	pure = []string{"./internal/payment/...", "./internal/redelivery/...", "./internal/message/...", "./internal/audit/...", "./internal/card/...", "./internal/gateway"}

	// useCases say what happens, through small interfaces of their own.
	useCases = []string{"./internal/outbox/...", "./internal/consumer/...", "./internal/deadletter/...", "./internal/webhook/...", "./internal/breaker/...", "./internal/fleet/...", "./internal/limit/...",
		"./internal/casework/...", "./internal/adoption/...", "./internal/survey/...", "./internal/doctor/..."}

	// adapters know one outside thing each. The packages below gateway are adapters of gateways, and what these share.
	adapters = []string{"./internal/postgres/...", "./internal/broker/...", "./internal/gateway/*", "./internal/telemetry/..."}

	// wiring puts everything together and is imported by nobody but itself and the commands.
	wiring = []string{"./internal/app/...", "./internal/cli/...", "./internal/dev/...", "./cmd/..."}

	// laptop is what a development machine and tests need, and no service.
	laptop = []string{"./internal/localpg/...", "./internal/natsembed/...", "./internal/gatewaysim/...", "./internal/dev/...", "./cmd/dev/..."}

	// testSupport supports tests from files that are not tests themselves.
	testSupport = []string{"./internal/pgtest/...", "./internal/natstest/...", "./internal/archtest/...", "./internal/gateway/gatewaytest/...", "./internal/certificate/certificatetest/...", "./internal/localprom/...", "./deploy/monitoring/..."}

	pgx        = "github.com/jackc/pgx/v5/..."
	nats       = "github.com/nats-io/nats.go/..."
	natsServer = "github.com/nats-io/nats-server/v2/..."
)

var rules = []rule{
	{
		name:    "the core is pure",
		in:      pure,
		imports: []string{"context", "log/...", "os/...", "net", "net/http/...", "database/...", "math/rand/...", "crypto/rand", "./...", outside},
		but:     pure,
		reason:  "a decision that depends on its arguments alone can be tested at every limit, simulated and explained afterwards",
	},
	{
		name:   "the core has no clock",
		in:     pure,
		calls:  []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.Tick", "time.NewTimer", "time.NewTicker"},
		reason: "time comes as an argument: the clock that counts is the database's",
	},
	{
		name:    "use cases know no vendor",
		in:      useCases,
		imports: join(adapters, []string{pgx, "database/sql/...", nats, natsServer}),
		but:     []string{"./internal/gateway/strictjson"},
		reason:  "a use case states what it needs as an interface of its own, and an adapter fits it; so it is tested without servers",
	},
	{
		name:    "arrows point inward",
		in:      join(pure, useCases, adapters, []string{"./internal/secret/...", "./internal/certificate/...", "./internal/config/..."}),
		imports: wiring,
		reason:  "what is inside does not know how it is put together",
	},
	{
		name:    "adapters do not read the configuration",
		in:      join(useCases, adapters),
		imports: []string{"./internal/config/..."},
		reason:  "each package takes options of its own; the wiring fills them from the configuration",
	},
	{
		name:    "SQL is in one place",
		in:      everything,
		except:  join(wiring, []string{"./internal/postgres/...", "./internal/pgtest/..."}),
		imports: []string{pgx, "database/sql/..."},
		reason:  "all SQL is in internal/postgres; the wiring may open a pool",
	},
	{
		name:    "NATS is in one place",
		in:      everything,
		except:  join(wiring, []string{"./internal/broker/...", "./internal/natsembed/...", "./internal/natstest/..."}),
		imports: []string{nats},
		reason:  "what JetStream does, and does wrong, is known to internal/broker; the wiring may open a connection",
	},
	{
		name:    "services contain no NATS server",
		in:      everything,
		except:  []string{"./internal/dev/...", "./internal/natsembed/...", "./internal/natstest/...", "./cmd/dev/..."},
		imports: []string{natsServer},
		reason:  "a server inside a service is 20 MB of code that listens, and the broker is to be another process",
	},
	{
		name:    "services contain nothing of a laptop",
		in:      everything,
		except:  join(laptop, testSupport),
		imports: laptop,
		reason:  "no service installs or starts a database, a broker or a gateway",
	},
	{
		name:    "services contain no tests",
		in:      everything,
		except:  testSupport,
		imports: join(testSupport, []string{"testing/...", "go.uber.org/goleak/...", "pgregory.net/rapid/...", "github.com/google/go-cmp/..."}),
		reason:  "what supports tests is linked into tests only",
	},
	{
		name:   "one reader of the environment",
		in:     everything,
		except: []string{"./internal/config/...", "./internal/secret/...", "./internal/localpg/..."},
		calls:  []string{"os.Getenv", "os.LookupEnv", "os.Environ", "os.ExpandEnv", "syscall.Getenv", "syscall.Environ"},
		reason: "each setting has one name, one place where it is checked and one where it is documented: internal/config. " +
			"internal/secret reads the variable that the configuration names, internal/localpg the one that names PostgreSQL's programs",
	},
	{
		name:   "one reader of secrets",
		in:     everything,
		except: []string{"./internal/config/...", "./internal/secret/..."},
		calls:  []string{"pollux/internal/secret.Load", "pollux/internal/secret.FromFile", "pollux/internal/secret.FromEnv"},
		reason: "a secret is read and checked at start, with the rest of the configuration",
	},
	{
		name:    "one reader of configuration files",
		in:      everything,
		except:  []string{"./internal/config/..."},
		imports: []string{"github.com/knadh/koanf/..."},
		reason:  "files, environment and flags are merged in one place, or their order would depend on the command",
	},
	{
		name:    "flags belong to commands",
		in:      everything,
		except:  join(wiring, []string{"./internal/config/...", "./internal/gatewaysim/..."}),
		imports: []string{"flag", "github.com/spf13/pflag/...", "github.com/spf13/cobra/..."},
		reason:  "a package that defines flags decides the command line of every binary that imports it",
	},
	{
		name:   "tests do not skip",
		in:     everything,
		files:  tests,
		calls:  []string{"t.Skip", "t.Skipf", "t.SkipNow", "b.Skip", "b.Skipf", "b.SkipNow", "tb.Skip", "tb.Skipf", "tb.SkipNow"},
		reason: "a test that skips where a real part is missing is green for the wrong reason: it fails",
	},
	{
		name:   "tests do not sleep",
		in:     everything,
		files:  tests,
		calls:  []string{"time.Sleep"},
		unless: "testing/synctest", // in its bubble sleeping is exact and costs nothing
		reason: "a pause is too short on a busy machine and too long on any other: wait for a condition, or use virtual time",
	},
}

// maxMain is how many lines the main.go of a command may have: it names what runs, and the rest can be tested.
const maxMain = 30

// vagueNames are names of packages that say nothing: everything could be in them, and soon is.
var vagueNames = []string{
	"base", "common", "commons", "data", "entity", "entities", "helper", "helpers", "impl", "info", "interface", "interfaces", "lib", "libs",
	"manager", "managers", "misc", "model", "models", "shared", "type", "types", "util", "utils",
}

func join(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}
