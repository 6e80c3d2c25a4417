package stage

import (
	"context"
	"log/slog"
	"os"
)

// reloadKeys reads the key again at each value of reloads, until ctx ends.
func (s *Stage) reloadKeys(ctx context.Context, reloads <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reloads:
		}
		if err := s.caller.ReloadKey(); err != nil {
			s.Log.Error("key not reloaded, keeping the old one", slog.Any("error", err))
			continue
		}
		s.Log.Info("key reloaded")
	}
}
