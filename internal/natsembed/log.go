package natsembed

import (
	"fmt"
	"log/slog"
)

// logger hands what the server says to slog. What it only notices is of no interest beside Pollux's own lines: Debug.
type logger struct{ log *slog.Logger }

const said = "embedded NATS server"

func (l logger) Noticef(f string, v ...any) { l.log.Debug(said, "line", fmt.Sprintf(f, v...)) }
func (l logger) Warnf(f string, v ...any)   { l.log.Warn(said, "line", fmt.Sprintf(f, v...)) }
func (l logger) Errorf(f string, v ...any)  { l.log.Error(said, "line", fmt.Sprintf(f, v...)) }
func (l logger) Fatalf(f string, v ...any)  { l.log.Error(said, "line", fmt.Sprintf(f, v...)) }
func (l logger) Debugf(string, ...any)      {}
func (l logger) Tracef(string, ...any)      {}
