"""Search of settings: values to try, study, trials, preset and the page of the result."""
