# SPDX-License-Identifier: Apache-2.0
# Man pages and the bash completion, written by the program that was just built, so that they
# are always the same as --help.
set(SEMEL_MANUAL ${CMAKE_BINARY_DIR}/manual)
add_custom_command(OUTPUT ${SEMEL_MANUAL}/semel.bash
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${SEMEL_MANUAL}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${SEMEL_MANUAL}/man1
  COMMAND semel man --output ${SEMEL_MANUAL}/man1
  COMMAND semel completion bash > ${SEMEL_MANUAL}/semel.bash
  COMMAND semel run --sample > ${SEMEL_MANUAL}/semel.yaml
  DEPENDS semel COMMENT "Writing the man pages" VERBATIM)
add_custom_target(semel_manual ALL DEPENDS ${SEMEL_MANUAL}/semel.bash)

install(DIRECTORY ${SEMEL_MANUAL}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
install(FILES ${SEMEL_MANUAL}/semel.bash RENAME semel
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${SEMEL_MANUAL}/semel.yaml
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/semel/examples COMPONENT program)
