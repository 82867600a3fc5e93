"""Time of the parts of a training, and a trace of its steps."""
