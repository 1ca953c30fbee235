"""From columns of any kind to numbers, and from numbers to standardised ones; learned on training rows."""
