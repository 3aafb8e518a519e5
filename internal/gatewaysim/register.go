package gatewaysim

import (
	"fmt"
	"time"
)

// Register enters payments. Entering the same payment again changes nothing. It stops at the first payment that is not valid, is
// registered otherwise already, or is one too many, and says which; those before it are entered.
func (s *Simulator) Register(payments []Payment) error {
	now := time.Now()
	for i, p := range payments {
		if err := p.validate(); err != nil {
			return fmt.Errorf("payment %d of %d: %w", i+1, len(payments), err)
		}
		if s.fit(p.Script) != p.Script {
			return fmt.Errorf("payment %d of %d: script %+v: this gateway has no words for it", i+1, len(payments), p.Script)
		}
		if err := s.book.add(p, now); err != nil {
			return fmt.Errorf("payment %d of %d: %w", i+1, len(payments), err)
		}
	}
	return nil
}
