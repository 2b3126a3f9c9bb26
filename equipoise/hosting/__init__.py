"""The ground of every host: clock, threads, HTTP port, settings, load of its machine."""
