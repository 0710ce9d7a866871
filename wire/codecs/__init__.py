"""How codecs are generated; the front door is `wire.codec`."""
