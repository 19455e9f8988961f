"""The dsec = dsecctl program."""
