// The version of Unreft, one text for library, daemon and command: it is the project's in
// CMakeLists.txt. Any thread.
#pragma once

namespace unreft {

const char* SoftwareVersion();  // "1.2.3"

}  // namespace unreft
