"""Where memory lies, how it is placed, and how fast it is read and written."""
