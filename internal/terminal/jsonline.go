package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// JSONLine writes value as JSON in one line, harmless to a terminal like JSON.
func JSONLine(w io.Writer, value any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	_, err := io.WriteString(w, EscapeJSON(b.String()))
	return err
}
