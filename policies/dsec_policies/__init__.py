"""Policy pack of dsec; the rules themselves are in dsec.rules."""
