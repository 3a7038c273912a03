// The program of the store's thread (`main.ts`) as text, for bundles. The build of the package writes it (build/programs.ts).
// It is null in the source, which runs from its files.

export const bundled: string | null = null
