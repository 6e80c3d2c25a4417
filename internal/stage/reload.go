package stage

import (
	"context"
	"log/slog"
	"os"
)

// reloadKeys reads the key again at each SIGHUP.
func (s *Stage) reloadKeys(ctx context.Context, reloads <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reloads:
		}
		if err := s.caller.ReloadKey(); err != nil {
			s.Log.Error("key not read again, the old one stays", slog.Any("error", err))
			continue
		}
		s.Log.Info("key read again")
	}
}
