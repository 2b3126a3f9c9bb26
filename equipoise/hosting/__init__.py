"""What every host stands on: clock, threads, HTTP port, settings, load of its machine."""
