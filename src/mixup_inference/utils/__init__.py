"""Files, processes, progress, profiling and text: what every package may use."""
