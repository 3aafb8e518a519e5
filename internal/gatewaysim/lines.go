package gatewaysim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// maxLine is the length of the longest line of a payment, in bytes.
const maxLine = 4 << 10

// readPayments reads payments as JSON lines; empty lines are left out. It says in which line it stopped.
func readPayments(r io.Reader) ([]Payment, error) {
	var payments []Payment
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, maxLine), maxLine)
	line := 1
	for ; in.Scan(); line++ {
		text := bytes.TrimSpace(in.Bytes())
		if len(text) == 0 {
			continue
		}
		p, err := parsePayment(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		payments = append(payments, p)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", line, err)
	}
	return payments, nil
}

// parsePayment reads one payment, strictly: a key that is not known is a mistake, and so is anything after it.
func parsePayment(text []byte) (Payment, error) {
	var p Payment
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	if err := in.Decode(&p); err != nil {
		return p, err
	}
	if _, err := in.Token(); err != io.EOF {
		return p, fmt.Errorf("more than one value")
	}
	return p, p.validate()
}
