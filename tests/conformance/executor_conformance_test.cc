#include "tests/conformance/executor_conformance.h"

namespace unreft {
namespace {

INSTANTIATE_TEST_SUITE_P(Asio, ExecutorConformance,
                         testing::Values(WorldMaker<World>{
                             "Asio", [] { return std::make_unique<AsioWorld>(); }}),
                         WorldName<World>);
INSTANTIATE_TEST_SUITE_P(Sim, ExecutorConformance, testing::ValuesIn(SimWorlds<World, SimWorld>()),
                         WorldName<World>);

}  // namespace
}  // namespace unreft
