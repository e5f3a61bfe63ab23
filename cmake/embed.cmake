# SPDX-License-Identifier: Apache-2.0
# Turns a text file into a C string: cmake -DINPUT= -DOUTPUT= -DNAME= -P embed.cmake
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${hex}")
file(WRITE ${OUTPUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = { ${bytes} 0 };\n")
