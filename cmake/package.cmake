# SPDX-License-Identifier: Apache-2.0
# Debian packages, by CPack: semel (program, manual, units, config file), libsemel0 and libsemel-dev.
# `scripts/package` builds them.
set(SEMEL_PACKAGE ${CMAKE_BINARY_DIR}/package)
set(SEMEL_DOC ${CMAKE_INSTALL_DATADIR}/doc/semel)
# In a package the program is not below /usr/local.
file(GLOB UNITS CONFIGURE_DEPENDS packaging/systemd/*.service packaging/systemd/*.timer)
foreach(unit ${UNITS})
  get_filename_component(name ${unit} NAME)
  file(READ ${unit} text)
  string(REPLACE /usr/local/bin/ /usr/bin/ text "${text}")
  file(CONFIGURE OUTPUT ${SEMEL_PACKAGE}/units/${name} CONTENT "${text}" @ONLY)
endforeach()

# Only for packages: these places are the system's, wherever the prefix is.
install(DIRECTORY ${SEMEL_PACKAGE}/units/ packaging/systemd/semel-.service.d
  DESTINATION /usr/lib/systemd/system COMPONENT program EXCLUDE_FROM_ALL)
install(FILES packaging/debian/semel.yaml DESTINATION /etc/semel COMPONENT program EXCLUDE_FROM_ALL)
install(FILES packaging/debian/sysusers.conf RENAME semel.conf
  DESTINATION /usr/lib/sysusers.d COMPONENT program EXCLUDE_FROM_ALL)
install(FILES README.md CHANGELOG.md DESTINATION ${SEMEL_DOC} COMPONENT program EXCLUDE_FROM_ALL)
install(FILES LICENSE RENAME copyright DESTINATION ${SEMEL_DOC} COMPONENT program EXCLUDE_FROM_ALL)
install(DIRECTORY docs/runbooks packaging/prometheus packaging/grafana
  DESTINATION ${SEMEL_DOC} COMPONENT program EXCLUDE_FROM_ALL)
foreach(part library development)
  set(name_library libsemel0)
  set(name_development libsemel-dev)
  install(FILES LICENSE RENAME copyright
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name_${part}} COMPONENT ${part} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME semel)
set(CPACK_PACKAGE_CONTACT "The Semel developers <semel@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "effectively-once event delivery between a database and a message broker")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_ALL program library development)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "The program: outbox relay, consumers, admin server, systemd units.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The shared library.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "Headers, the static library, and what finds them.")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME semel)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
# Loaded when they are first needed, so dpkg-shlibdeps does not find them in the program.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS libmicrohttpd12)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS libcurl4)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "libpq5, librabbitmq4, librdkafka1")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_EXTRA
  ${CMAKE_SOURCE_DIR}/packaging/debian/conffiles ${CMAKE_SOURCE_DIR}/packaging/debian/postinst
  ${CMAKE_SOURCE_DIR}/packaging/debian/prerm ${CMAKE_SOURCE_DIR}/packaging/debian/postrm)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libsemel0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libsemel-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libsemel0 (= ${PROJECT_VERSION}), libsqlite3-dev, libjansson-dev")
include(CPack)
