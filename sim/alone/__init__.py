"""Parts of the product alone, under schedules, without nodes."""
