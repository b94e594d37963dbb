"""cldr."""
