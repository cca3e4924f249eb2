#include "base/version.h"

namespace unreft {

const char* SoftwareVersion() { return UNREFT_VERSION; }

}  // namespace unreft
