"""@trace: recording a call (`trace`, `recording`), what a recording depends on (`guards`), calling it again (`replay`)."""
