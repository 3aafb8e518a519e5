package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nkeys"
	"github.com/spf13/cobra"

	"pollux/internal/app"
	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/postgres"
	"pollux/internal/terminal"
)

func permsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "perms", Short: "Prints the rights that each program needs, for NATS and for PostgreSQL",
		Long: `perms prints what gives each program, and each kind of person, the least that they need. It asks neither server; docs/permissions.md says who may do what, and why.`,
	}
	cmd.AddCommand(permsPrint(), permsKeys())
	return cmd
}

func permsPrint() *cobra.Command {
	auth, keys := string(broker.NKey), ""
	cmd := &cobra.Command{
		Use: "print [nats|postgres]", Short: "Prints the accounts, users and permissions of NATS, or the roles and grants of PostgreSQL",
		Long: `print nats prints the accounts of a nats-server configuration with a user for each program that speaks with NATS, and for each service in nats.readers: relay and consumer in that of the
streams, everybody else in one of their own, to which answers come back and which reaches nothing but what its user may ask for. What each may publish and read is derived from the configured
gateways and lanes: print it again, and have the server reload it, when those change; twice in a row when there is an account more, which a server connects with the others at the second reload. The users' public nkeys are written out from --keys, a file with
what pollux perms keys prints. Without it, they and passwords are variables of the server's environment, POLLUX_RELAY_NKEY and so on: a server that runs gets no new ones, so that a user
more needs a restart. With -o json it is for nsc, or for other programs.

print postgres prints SQL: first the roles, which whoever may create roles makes once for a cluster, then their grants, which the owner of the schema runs. pollux migrate up does both
as far as it may.`,
		Args: onePart,
		RunE: func(cmd *cobra.Command, args []string) error {
			if auth != string(broker.NKey) && auth != string(broker.Password) {
				return app.Usage("--auth %q: %s or %s", auth, broker.NKey, broker.Password)
			}
			if len(args) == 1 && args[0] == "postgres" {
				return printGrants(cmd)
			}
			if keys != "" && auth != string(broker.NKey) {
				return app.Usage("--keys is for --auth %s", broker.NKey)
			}
			return printUsers(cmd, broker.Auth(auth), keys)
		},
	}
	cmd.Flags().StringVar(&auth, "auth", auth, "how users of NATS prove who they are: nkey or password")
	cmd.Flags().StringVar(&keys, "keys", keys, "a file with the users' public nkeys, as pollux perms keys prints them, to write them out; empty: variables of the server's environment")
	return cmd
}

func onePart(_ *cobra.Command, args []string) error {
	if len(args) > 1 || len(args) == 1 && args[0] != "nats" && args[0] != "postgres" {
		return fmt.Errorf("%q: nats or postgres", strings.Join(args, " "))
	}
	return nil
}

func printUsers(cmd *cobra.Command, auth broker.Auth, keys string) error {
	cfg, err := load(cmd, config.SkipDatabase|config.SkipBroker)
	if err != nil {
		return err
	}
	if len(cfg.Gateways) == 0 {
		return app.NotTried(app.Hint(errors.New("no gateway is configured: nobody could publish a poll"), "the configuration of the relay and the consumers has them; --config says which it is"))
	}
	users := broker.Users(app.Access(cfg))
	if output(cmd) == "json" {
		return terminal.JSON(cmd.OutOrStdout(), struct {
			Account string          `json:"account"` // of the streams
			Users   []broker.User   `json:"users"`
			Exports []broker.Export `json:"exports"` // of that account, to those of users
		}{broker.Account, users, broker.Exports(users)})
	}
	conf, environment := broker.Conf(users, auth), ", whose environment has the variables"
	if keys != "" {
		if conf, err = writtenOut(conf, users, keys); err != nil {
			return err
		}
		environment = ""
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "# Made by: pollux perms print nats. Included by the configuration of nats-server (include ./accounts.conf)%s.\n\n%s", environment, conf)
	return nil
}

// writtenOut has the public keys of a file instead of the variables.
func writtenOut(conf string, users []broker.User, file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", app.NotTried(fmt.Errorf("the public keys: %w", err))
	}
	keys := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if variable, key, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			keys[variable] = key
		}
	}
	for _, u := range users {
		variable := broker.NKey.Variable(u.Name)
		if !nkeys.IsValidPublicUserKey(keys[variable]) {
			return "", app.NotTried(app.Hint(fmt.Errorf("%s has no public key %s=U…", file, variable), "make it anew, which keeps the keys that there are: pollux perms keys FOLDER > %s", file))
		}
		conf = strings.ReplaceAll(conf, "$"+variable+"\n", keys[variable]+"\n")
	}
	return conf, nil
}

// grantsOf are a role's rights as -o json shows them.
type grantsOf struct {
	Role   postgres.Role `json:"role"`
	Does   string        `json:"does"`
	Rights []string      `json:"rights"`
	SQL    []string      `json:"sql"`
}

func printGrants(cmd *cobra.Command) error {
	all := make([]grantsOf, len(postgres.Roles))
	for i, r := range postgres.Roles {
		all[i] = grantsOf{r, r.Does(), r.Rights(), orEmpty(r.GrantSQL())}
	}
	if output(cmd) == "json" {
		return terminal.JSON(cmd.OutOrStdout(), struct {
			RolesSQL  string     `json:"roles_sql"`
			PublicSQL []string   `json:"public_sql"`
			Roles     []grantsOf `json:"roles"`
		}{postgres.RolesSQL(), postgres.PublicSQL(), all})
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "-- Made by: pollux perms print postgres.\n\n-- Once for a cluster, by whoever may create roles:\n\n%s\n-- In each database, by the owner of the schema pollux; pollux migrate up does the same:\n\nbegin;\n", postgres.RolesSQL())
	section := func(whose string, statements []string) {
		if len(statements) == 0 {
			return
		}
		fmt.Fprintf(w, "\n-- %s\n", whose)
		for _, s := range statements {
			fmt.Fprintf(w, "%s;\n", s)
		}
	}
	section("everybody", postgres.PublicSQL())
	for _, g := range all {
		section(g.Does, g.SQL)
	}
	fmt.Fprint(w, "\ncommit;\n")
	return nil
}

// madeKey is a user's key as -o json shows it.
type madeKey struct {
	User     string `json:"user"`
	Variable string `json:"variable"`
	Public   string `json:"public_nkey"`
	File     string `json:"nkey_file"`
	Made     bool   `json:"made"` // false: it was there
}

func permsKeys() *cobra.Command {
	return &cobra.Command{
		Use: "keys FOLDER", Short: "Makes an nkey for each user of NATS, and prints the variables of the server's environment",
		Long: `keys writes FOLDER/USER.nk, the seed of an nkey, for each user of pollux perms print nats, readable by its owner alone: it is the program's nats.nkey_file. It prints the public keys as the
variables that the server's environment has. Seeds that are there are kept.`,
		Args: arguments("/etc/pollux/nkeys", "a folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := load(cmd, config.SkipDatabase|config.SkipBroker)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o700); err != nil {
				return fmt.Errorf("making the folder of the keys: %w", err)
			}
			var keys []madeKey
			for _, u := range broker.Users(app.Access(cfg)) {
				k, err := keyOf(args[0], u.Name)
				if err != nil {
					return err
				}
				keys = append(keys, k)
			}
			if output(cmd) == "json" {
				return terminal.JSON(cmd.OutOrStdout(), keys)
			}
			for _, k := range keys {
				fmt.Fprintf(cmd.OutOrStdout(), "%s=%s\n", k.Variable, k.Public)
			}
			return nil
		},
	}
}

// keyOf reads a user's seed, or makes it.
func keyOf(folder, user string) (madeKey, error) {
	k := madeKey{User: user, Variable: broker.NKey.Variable(user), File: filepath.Join(folder, user+".nk")}
	fail := func(err error) (madeKey, error) { return k, fmt.Errorf("the key %s: %w", k.File, err) }
	seed, err := os.ReadFile(k.File)
	if errors.Is(err, os.ErrNotExist) {
		k.Made = true
		seed, err = newSeed(k.File)
	}
	if err != nil {
		return fail(err)
	}
	pair, err := nkeys.ParseDecoratedNKey(seed)
	if err != nil {
		return fail(err)
	}
	defer pair.Wipe()
	if k.Public, err = pair.PublicKey(); err != nil {
		return fail(err)
	}
	if !nkeys.IsValidPublicUserKey(k.Public) {
		return fail(errors.New("it is not the seed of a user (SU…)"))
	}
	return k, nil
}

// newSeed writes a new seed to a file that must not exist.
func newSeed(file string) ([]byte, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	defer pair.Wipe()
	seed, err := pair.Seed()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	written := append(bytes.Clone(seed), '\n') // the pair's own is wiped
	_, err = f.Write(written)
	return written, errors.Join(err, f.Close())
}
