package stage

import (
	"context"
	"log/slog"
	"os"
)

// reloadKeys reloads the API keys at each SIGHUP.
func (s *Stage) reloadKeys(ctx context.Context, reloads <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reloads:
		}
		if err := s.caller.ReloadKey(); err != nil {
			s.Log.Error("API keys not reloaded, the old ones stay in use", slog.Any("error", err))
			continue
		}
		s.Log.Info("API keys reloaded")
	}
}
