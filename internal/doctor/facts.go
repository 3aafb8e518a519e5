package doctor

import "time"

// Sources are all facts that checks are made of. Each is told by an adapter; a nil one nobody can tell here, and its checks are left out.
type Sources struct {
	Server      *Fact[Server]
	Clock       *Fact[Clock] // of the database
	Schema      *Fact[Schema]
	Sessions    *Fact[Sessions]
	Connections *Fact[Connections]
	Tables      *Fact[[]Table]
	Structure   *Fact[Structure]
	Partitions  *Fact[[]Partitioned]
	Strays      *Fact[Strays]
	Ahead       *Fact[Ahead]
	Queues      *Fact[[]Queue]
	Outbox      *Fact[Outbox]
	Letters     *Fact[Letters]
	Silence     *Fact[[]Silent]
	Chain       *Fact[Chain]
	Rights      *Fact[Rights]
	Logins      *Fact[Logins]
	Roles       *Fact[[]Rights] // of each role of Pollux that there is

	Hub         *Fact[Hub]
	BrokerClock *Fact[Clock]
	Drift       *Fact[[]Difference]
	Streams     *Fact[[]Stream]
	Consumers   *Fact[[]Consumer]
	Account     *Fact[Account]
	Disk        *Fact[Disk]
	Fleet       *Fact[Fleet]
	Access      *Fact[Rights] // to the broker

	Machine *Fact[Machine]
	Files   *Fact[[]File]
}

// Server is a PostgreSQL, and who we are there.
type Server struct {
	Version   int // as server_version_num: 150004
	Name      string
	Login     string
	Superuser bool
	Standby   bool
	ReadOnly  bool
	Settings  map[string]string // as this session sees them
	Peer      Peer
}

// Peer is who is at the other end of a connection.
type Peer struct {
	Local        bool // on this machine
	Secure       bool // TLS
	Certificates []Certificate
}

// Certificate is one that somebody shows.
type Certificate struct {
	Where    string // whose: the database's, a file
	Subject  string
	NotAfter time.Time
	Err      string // why it cannot be read; empty when it can
}

// Clock is another machine's clock, read between two looks at ours.
type Clock struct {
	Offset time.Duration // how far it is ahead of ours, if it was read in the middle
	Within time.Duration // half of the way there and back: so much the offset may be wrong
	At     time.Time     // when, by ours
}

// Schema is the version of the schema.
type Schema struct {
	Have, Want int64 // Have is 0 when there is none
	Serves     bool  // a newer one serves this build
}

// Sessions are what keeps PostgreSQL from cleaning up, and who waits for whom.
type Sessions struct {
	Hidden   bool // the states of other logins' sessions are not shown to us, and should be
	Private  bool // they are not shown to us, as it is meant to be
	Oldest   []Session
	Prepared []Prepared
	Slots    []Slot
	Waiting  []Waiting
	Relays   int // sessions that call themselves relay
}

// Session is a session with an open transaction.
type Session struct {
	PID         int
	Login       string
	Application string
	State       string
	Age         time.Duration // of its transaction
	Kind        string        // client backend, walsender, …
}

// Prepared is a transaction that was prepared and neither committed nor rolled back.
type Prepared struct {
	GID   string
	Owner string
	Age   time.Duration
}

// Slot is a replication slot.
type Slot struct {
	Name     string
	Active   bool
	Retained int64 // bytes of write-ahead log that are kept for it
	Status   string
	XIDs     int64 // transactions since the oldest whose rows are kept for it; 0: it keeps none
}

// Waiting is a session that waits for a lock.
type Waiting struct {
	PID         int
	Application string
	For         time.Duration
	Blocker     int // the process id of one that it waits for; 0: nobody knows
	BlockedBy   string
}

// Connections are the connections of a PostgreSQL server.
type Connections struct {
	Max      int // all that it takes
	Reserved int // for superusers
	Used     int
	Ours     map[string]int // by application_name, those of Pollux
	Hidden   bool           // the sessions of other logins are not shown to us, and should be
}

// Table is one of the tables that are written all the time.
type Table struct {
	Name       string
	Live, Dead int64
	Bytes      int64
	Vacuumed   time.Time // when it last was; zero: never
	XIDs       int64     // transactions since its oldest row that is not frozen
}

// Structure is how the schema differs from what its migrations made.
type Structure struct {
	MissingIndexes   []Index
	InvalidIndexes   []string
	DisabledTriggers []string // as table.trigger
	Options          []Option
}

// Index is an index, or a constraint with one, and the statement that makes it.
type Index struct{ Name, Make string }

// Option is a storage parameter of a table that matters.
type Option struct {
	Table, Name, Have, Want string
}

// Partitioned is a table with a partition a day.
type Partitioned struct {
	Table   string
	Today   time.Time // the database's
	Missing []time.Time
	Oldest  time.Time // zero: there is none
	Default int64     // rows in the default partition
	Keep    time.Duration
}

// Strays are payments that nothing will ever finish, as far as was looked.
type Strays struct {
	Looked  int64 // payments, the newest ones
	NoJob   int64 // pending, without a job
	Example int64 // the id of one
	Jobs    int64 // jobs that were looked at
	Final   int64 // of payments that are final, or that do not exist
	FinalOf int64 // the id of such a payment
}

// Ahead is what the record took for the time when its clock was ahead, and what therefore waits until the clock is there again.
type Ahead struct {
	Looked int64         // jobs that were looked at
	Jobs   int64         // that were written later than now
	Events int64         // that wait, and were written later than now or wait for longer than they are told to
	By     time.Duration // how far the furthest is ahead
}

// Queue is the due work of a queue in the database.
type Queue struct {
	Gateway, Lane string
	Due           int64 // at most some thousands are counted
	Oldest        time.Duration
}

// Outbox are the events that wait to be published.
type Outbox struct {
	Waiting  int64 // at most some thousands are counted
	Oldest   time.Duration
	Tries    int
	SetAside int64
	Why      string        // why one of them was set aside
	Delay    time.Duration // the longest between commit and publication, of the last thousand that were published
}

// Letters are the dead letters that wait for a person.
type Letters struct {
	Open, Parked int64
	Oldest       time.Duration
	Money        map[string]int64 // at stake, by currency, in minor units
	Stuck        int64            // being replayed, with no replay that is driven
}

// Silent is how long a gateway has sent no notification.
type Silent struct {
	Gateway string
	After   time.Duration // that is silence
	Heard   bool          // ever
	For     time.Duration
	Waiting bool // enough payments have waited all that time
}

// Chain is what became of the verification of the newest rows of the audit log.
type Chain struct {
	Rows   int64
	Head   string
	Broken int64 // the row; 0: none
	Why    string
	Open   bool // the log can be changed by this login
}

// Rights are what a login lacks and what it has too much.
type Rights struct {
	Login      string
	Role       string // which role it is held against
	Everything string // why it may do all there is; empty: it may not
	Missing    []string
	Excessive  []string
	Revoke     []string // the statements that take away what is too much because everybody has it
}

// Logins are those who have a role of ours, but for the owner of the schema.
type Logins struct {
	Open   []string // schemas in which everybody may make things
	Logins []Login
}

// Login is what a login, or a role, may do beyond the role of ours that it has.
type Login struct {
	Name       string
	Role       string
	Superuser  bool
	CreateRole bool
	Owner      bool     // of the schema pollux
	Schemas    bool     // it may make schemas
	Creates    []string // schemas in which it may make things, but for those in which everybody may
}

// Hub is a NATS server, and who we are there.
type Hub struct {
	Version string
	Name    string
	Cluster string // empty: a single server
	Servers int    // that are known
	Auth    bool   // it asks who we are
	Peer    Peer
}

// Difference is a setting of a stream or a consumer that is not as declared.
type Difference struct {
	Stream   string
	Consumer string
	Field    string // empty: it is missing
	Have     string
	Want     string
	Blocked  string // why it is not changed by pollux streams apply
}

// Stream is a stream as it is.
type Stream struct {
	Name            string
	Retention       string
	Discard         string
	Storage         string
	Replicas        int
	MaxAge          time.Duration
	DuplicateWindow time.Duration
	Messages        int64
	Bytes           int64
	MaxMessages     int64 // not above 0: no bound
	MaxBytes        int64
	Leader          string // empty: none, or no cluster
	Clustered       bool
	Offline         []string // peers
	Lagging         []string
}

// Consumer is a consumer as it is.
type Consumer struct {
	Stream        string
	Name          string
	Gateway, Lane string // as its name says
	AckPolicy     string
	AckWait       time.Duration
	MaxDeliver    int
	BackOff       []time.Duration
	MaxAckPending int
	Push          bool
	Pending       int64 // that were never delivered
	AckPending    int64
	Waiting       int // requests for messages: somebody works
}

// Account are the limits of the account that we are in.
type Account struct {
	Off    string // why there is no JetStream for it; empty: there is
	Limits []Limit
}

// Limit is a limit and how much of it is used.
type Limit struct {
	Name      string
	Used, Max int64 // Max below 1: none
	Bytes     bool
}

// Disk is how a NATS server syncs its disk.
type Disk struct {
	Asked    bool // a monitoring page was named
	Always   bool
	Interval time.Duration
}

// Fleet is what the instances agree on.
type Fleet struct {
	Instances int // that take part, as far as their beats say
	Shares    map[string]Share
	Breakers  []Breaker
}

// Share is who shares a gateway's limit.
type Share struct {
	Members int
	Sum     float64 // of the parts; 1 is the whole
	Unread  string
}

// Breaker is a breaker that is not as in quiet times, or whose limit is not.
type Breaker struct {
	Gateway, Account string
	State            string // closed, open, half_open, disabled
	Cause            string
	Since            time.Time
	Forced           string // the state; empty: none is forced
	Actor, Reason    string
	Until            time.Time
	Unread           string
	Rate             float64 // the part of the limit that complaints have left; 1 is all
}

// Machine is this machine and this process.
type Machine struct {
	OpenFiles   uint64 // how many this process may have open; 0: nobody knows
	Memory      int64  // the limit of its control group; 0: none
	GoLimit     int64  // GOMEMLIMIT; 0: none
	Root        bool
	Unsupported bool // nobody can tell on this system
}

// File is a file that the configuration names.
type File struct {
	Key     string // of the configuration
	Path    string
	Kind    FileKind
	Err     string // why it cannot be looked at; empty when it can
	Missing bool   // it is not on this machine, or it is another program's, and we may not read it
	Mode    uint32 // permission bits
	Others  bool   // others than its owner may read or write it
	Folder  string // on the way to it, in which everybody may put another in its place; empty: none
	Useless string // why a service refuses it: it is empty, or everybody may write it
	Certs   []Certificate
	Expires time.Time // of a NATS user's credentials; zero: never
}

// FileKind is what a file is.
type FileKind string

// The kinds of file.
const (
	SecretFile      FileKind = "secret"
	KeyFile         FileKind = "key"
	CertificateFile FileKind = "certificate"
	CredentialsFile FileKind = "credentials" // of NATS: a JWT with its seed
)
