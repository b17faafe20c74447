from hypothesis import settings

settings.register_profile("codecs", deadline=None, max_examples=40)  # a busy machine is no reason to fail
settings.load_profile("codecs")
