"""The generator of encoders and decoders. Import them from `odradek.wire.codec`."""
