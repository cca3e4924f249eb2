# cmake -DFILE=in.fatbin -DOUT=out.c -DSYMBOL=name -P EmbedFile.cmake
#
# Writes the bytes of a file as C: `const unsigned char name[]` and `const unsigned long
# name_bytes`.
file(READ ${FILE} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUT} "_Alignas(16) const unsigned char ${SYMBOL}[] = {\n${bytes}\n};
const unsigned long ${SYMBOL}_bytes = sizeof(${SYMBOL});\n")
