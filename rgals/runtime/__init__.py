"""What everything else runs on: threads, memory, aligned arrays, progress, errors, checks of parameters."""
