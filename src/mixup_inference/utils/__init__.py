"""Files, processes, progress, profiling and text: what every room may use."""
