package deadletter

import "context"

// Chosen returns the letters that Replay would take: those with the ids, or, when there are none, the open ones that the filter chooses.
// It changes nothing.
func (d *Desk) Chosen(ctx context.Context, ids []int64, f Filter) ([]Letter, error) {
	if len(ids) == 0 {
		chosen, err := d.choose(ctx, f)
		if err != nil {
			return nil, err
		}
		ids = chosen
	}
	letters := make([]Letter, 0, len(ids))
	for _, id := range ids {
		details, err := d.record.Show(ctx, id)
		if err != nil {
			return nil, err
		}
		letters = append(letters, details.Letter)
	}
	return letters, nil
}
