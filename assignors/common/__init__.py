"""What assignors share. It imports none of them (`make check`)."""
