from hypothesis import settings

settings.register_profile("security", deadline=None, max_examples=100)  # a busy machine must not fail tests
settings.load_profile("security")
