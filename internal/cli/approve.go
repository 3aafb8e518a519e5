package cli

import (
	"github.com/spf13/cobra"

	"pollux/internal/postgres"
)

// approveCommand is how a second person agrees to what is too large for one.
func approveCommand() *cobra.Command {
	cmd := replayTurn("approve", "Lets a replay begin that is too large for one person to decide", (*postgres.Replays).Approve)
	cmd.Long = `approve lets a replay begin whose letters or money are above operators.approve_above_count or approve_above_amount. Whoever asked for it cannot approve it. What
was chosen is frozen: pollux dlq status shows its number, its money and its checksum, and pollux dlq outcomes every letter. Then pollux dlq resume releases it.`
	return cmd
}
