"""When each LINE user last did something."""
