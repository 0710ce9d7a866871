"""The generator of encoders and decoders; the front door is `odradek.wire.codec`."""
