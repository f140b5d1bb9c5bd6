from common.interrupt import install

install()
