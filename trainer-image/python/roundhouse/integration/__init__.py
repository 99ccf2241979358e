"""What the integrations of other libraries share: the steps of a job for a loop that does not know
of dropped steps. It imports no other library than PyTorch."""
