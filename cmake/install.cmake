# SPDX-License-Identifier: Apache-2.0
# What `make install` installs: the program, both libraries, the headers, and what pkg-config and
# find_package(semel) need. All paths are relative to the file that has them, so a prefix can be moved.
include(CMakePackageConfigHelpers)

set(SEMEL_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/semel)
file(RELATIVE_PATH SEMEL_PREFIX_FROM_PC /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" SEMEL_PREFIX_FROM_PC ${SEMEL_PREFIX_FROM_PC})

configure_file(cmake/semel.pc.in semel.pc @ONLY)
configure_package_config_file(cmake/semelConfig.cmake.in semelConfig.cmake
  INSTALL_DESTINATION ${SEMEL_PACKAGE_DIR} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(semelConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS semel RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(TARGETS semel_shared semel_static EXPORT semelTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY include/semel DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_BINARY_DIR}/semel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)
install(EXPORT semelTargets NAMESPACE semel:: DESTINATION ${SEMEL_PACKAGE_DIR} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/semelConfig.cmake ${CMAKE_BINARY_DIR}/semelConfigVersion.cmake
  DESTINATION ${SEMEL_PACKAGE_DIR} COMPONENT development)
if(NOT SEMEL_SANITIZE) # a sanitized program is for tests, and need not run while it is built
  include(cmake/manual.cmake)
  include(cmake/package.cmake)
endif()
