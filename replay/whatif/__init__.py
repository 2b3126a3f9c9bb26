"""`what-if`: what other settings would have cost a recorded group."""
