from hypothesis import settings

settings.register_profile("codecs", deadline=None, max_examples=40)  # a slow machine must not fail a test
settings.load_profile("codecs")
