package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pollux/internal/broker"
	"pollux/internal/config"
	"pollux/internal/doctor"
	"pollux/internal/postgres"
)

// selfCheckTimeout bounds the self-check at the start. On a system that is well it takes some ten milliseconds; what does not answer in time is looked at by
// pollux doctor, and does not keep a service from its work.
const selfCheckTimeout = 900 * time.Millisecond

// selfCheck makes the checks of the doctor that matter at the start, and says what it finds. It returns an error when the service must not start. conn is nil for a service
// without a broker.
func (p *Process) selfCheck(ctx context.Context, c config.Config, program string, pool *pgxpool.Pool, conn *broker.Conn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, selfCheckTimeout, fmt.Errorf("no answer within %s", selfCheckTimeout))
	defer cancel()
	examiner := postgres.NewExaminer(pool, examineOptions(c, program))
	s := doctor.Sources{
		Server:  doctor.Ask(examiner.Server),
		Clock:   doctor.Ask(examiner.Clock),
		Schema:  doctor.Ask(examiner.Schema),
		Rights:  doctor.Ask(examiner.Rights),
		Queues:  doctor.Ask(examiner.Queues),
		Logins:  doctor.Ask(examiner.Self),
		Machine: doctor.Ask(func(context.Context) (doctor.Machine, error) { return thisMachine(), nil }),
	}
	if conn != nil {
		s.Hub = doctor.Ask(conn.Hub)
		s.BrokerClock = doctor.Ask(conn.Clock)
		s.Streams = doctor.Ask(conn.Streams)
		s.Consumers = doctor.Ask(conn.Consumers)
		s.Access = doctor.Ask(func(ctx context.Context) (doctor.Rights, error) { return accessOf(ctx, conn, c, program, s.Queues) })
	}
	set := doctorSettings(c)
	found := doctor.AtStart(ctx, &s, &set)
	for _, f := range found {
		level := slog.LevelWarn
		if f.Level == doctor.Red {
			level = slog.LevelError
		}
		p.Log.LogAttrs(ctx, level, "the self-check at the start found something", slog.String("check", f.ID), slog.String("subject", f.Subject), slog.String("found", f.Found),
			slog.String("why", f.Why), slog.String("hint", f.Mend))
	}
	err := doctor.Refused(found)
	if refusal, ok := errors.AsType[*doctor.Refusal](err); ok {
		return Hint(err, "%s", refusal.Hint())
	}
	return nil
}
