# What `cmake --install BUILD` puts where. Components:
#
#   client    libunreft.so, its headers, find_package(unreft) and pkg-config's unreft.pc
#   programs  unreftd and unreft
#   python    the package, in LIB/python; it finds libunreft.so and the programs from there
#   wheel     library and programs as they lie in the wheel, beside the package's sources; by name
#             only, see pyproject.toml and tools/setup/wheel.sh
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS unreft_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)
install(DIRECTORY include/unreft DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT client)

set(UNREFT_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/unreft)
configure_package_config_file(cmake/unreftConfig.cmake.in ${PROJECT_BINARY_DIR}/unreftConfig.cmake
  INSTALL_DESTINATION ${UNREFT_CMAKE_DIR}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/unreftConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/unreftConfig.cmake
              ${PROJECT_BINARY_DIR}/unreftConfigVersion.cmake
        DESTINATION ${UNREFT_CMAKE_DIR} COMPONENT client)

configure_file(cmake/unreft.pc.in ${PROJECT_BINARY_DIR}/unreft.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/unreft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT client)

install(TARGETS unreftd_bin unreft_bin RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        COMPONENT programs)

install(DIRECTORY integrations/python/unreft DESTINATION ${CMAKE_INSTALL_LIBDIR}/python
        COMPONENT python PATTERN __pycache__ EXCLUDE)

install(TARGETS unreft_shared LIBRARY DESTINATION unreft COMPONENT wheel EXCLUDE_FROM_ALL)
install(TARGETS unreftd_bin unreft_bin RUNTIME DESTINATION unreft/bin COMPONENT wheel
        EXCLUDE_FROM_ALL)
