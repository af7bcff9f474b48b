"""What a person sees in a terminal: progress bar, run header, run summary."""
